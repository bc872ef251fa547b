"""What the launcher imports before it forks, so that no worker has to."""

import ctypes
import faulthandler
import logging
import warnings

import cloudpickle
import gymnasium
import gymnasium.vector
import numpy as np

import stretto.workers.child

__all__ = ["cloudpickle", "ctypes", "faulthandler", "gymnasium", "logging", "np", "stretto", "warnings"]
