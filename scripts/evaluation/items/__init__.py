"""Kinds of questions with known answers, each drawn from a generator and split for evaluation."""
