"""Tests of the predictors."""
