"""e2e: does this kernel's win survive the workload?"""
