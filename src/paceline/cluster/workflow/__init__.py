"""Graphs of model calls with one deadline: vocabulary, protocols, planners. No tensors and no clock: each decision
takes `now`, so that a simulator and a controller of real engines share it."""

from paceline.cluster.workflow.tasks import Instance, Planner, Predictor, Queue, Task, Work, Workflow

__all__ = ["Instance", "Planner", "Predictor", "Queue", "Task", "Work", "Workflow"]
