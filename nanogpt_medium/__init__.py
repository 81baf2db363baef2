__version__ = "0.1.0"

# Before torch is imported: idle OpenMP threads spin for long by default, and on two cores two processes then starve each
# other; threads that never spin cost a lone run a fifth of its speed. A short spin serves both.
import os
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
