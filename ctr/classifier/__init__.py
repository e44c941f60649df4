"""FTRL-Proximal as an estimator of scikit-learn."""

from ctr.classifier.classifier import FTRLClassifier
