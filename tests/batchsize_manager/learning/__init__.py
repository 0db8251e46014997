"""Tests of what predictors learn, and where it is kept."""
