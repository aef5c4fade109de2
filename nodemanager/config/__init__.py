"""The site file: read, checked as a whole, and turned into values. Read ``site`` first."""
