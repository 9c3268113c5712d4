"""The rollout gate: does this model, on this machine, keep what speculation promises?"""
