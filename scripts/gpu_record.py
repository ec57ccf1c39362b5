"""Tells whether the recorded GPU check is of this source tree; informs only, and needs no GPU.

python scripts/gpu_record.py
"""

from scripts.gpu_gate.record import record_lines

if __name__ == "__main__":
    print("\n".join(record_lines()))
