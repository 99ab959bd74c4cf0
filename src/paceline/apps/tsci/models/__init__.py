"""The library of forecasting models: each a function of a history, with the settings that a grid search tries."""

from .library import LIBRARY, Failed, Made, TsciModel, forecast

__all__ = ["LIBRARY", "Failed", "Made", "TsciModel", "forecast"]
