"""Measurements of normlab itself: speed against torch, accuracy, training steps, and what this machine offers."""
