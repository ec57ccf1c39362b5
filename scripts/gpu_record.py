"""Says whether the recorded GPU check is of this source tree; needs no GPU and fails nothing.

python scripts/gpu_record.py
"""

from scripts.gpu_gate.record import record_lines

if __name__ == "__main__":
    print("\n".join(record_lines()))
