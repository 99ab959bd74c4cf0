"""QuantAgent: three analysts read price bars, one decision, a back-test beside honest baselines. No advice."""
