"""Tests of the documents: what they show runs, and prints what they say."""
