"""Parts of the data set that workers hold, and hand over to each other."""
