"""What predictors learn: fits in a process of their own, models kept and sent."""
