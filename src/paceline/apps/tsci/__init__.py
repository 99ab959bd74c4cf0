"""TimeSeriesScientist: from a CSV to a forecast and a report, by a curator, a planner, a forecaster and a reporter."""
