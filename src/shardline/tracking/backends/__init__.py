"""Trackers: CSV, MLflow, TensorBoard, Weights & Biases."""
