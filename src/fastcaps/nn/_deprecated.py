"""Layers that were made from a configuration; they will be removed in the next release."""

from fastcaps.nn.capsnet import CapsNet
from fastcaps.nn.capsules import CapsuleLayer, FoldedCapsuleLayer
from fastcaps.nn.config import CapsNetConfig
from fastcaps.nn.convolutional import PrimaryCapsules
from fastcaps.nn.fast import FastCapsNet


def primary_caps(config: CapsNetConfig) -> PrimaryCapsules:
    """Return the PrimaryCapsules of the network."""
    return CapsNet(config).primary


def class_caps(config: CapsNetConfig) -> CapsuleLayer:
    """Return the capsule layer of the network."""
    return CapsNet(config).routing


def folded_caps(config: CapsNetConfig) -> FoldedCapsuleLayer:
    """Return the capsule layer of the folded network."""
    return FastCapsNet(config).routing
