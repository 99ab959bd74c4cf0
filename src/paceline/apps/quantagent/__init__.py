"""QuantAgent: three analysts read price bars, one decision, a back-test compared with honest baselines. No advice."""
