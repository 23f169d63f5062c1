"""Kafka clients that nobody here wrote, behind one surface, so that one test asks the same of each."""
