"""Graphs of model calls with one deadline: vocabulary, protocols, planners. No tensors and no clock: each decision
takes `now`, so that a simulator and a controller of real engines share it."""

from paceline.cluster.workflow.tasks import CallPredictor, CallWork, Instance, Queue, Task, Workflow, WorkflowPlanner

__all__ = ["CallPredictor", "CallWork", "Instance", "Queue", "Task", "Workflow", "WorkflowPlanner"]
