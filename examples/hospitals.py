"""A made-up table of hospitals, as hospitals export them, to try things on.

Semicolons and decimal commas, dates, free text, missing values, raw units, and codes as labels. Two
of the six hospitals swap the codes of influenza and pneumonia; nothing in the table says so.

    python examples/hospitals.py hospitals.csv       # one table with a column `hospital`
    python examples/hospitals.py --each node         # node-1.csv to node-6.csv, one per hospital
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

HOSPITALS = ("Altona", "Barmbek", "Celle", "Dahme", "Emden", "Fulda")
#: Hospitals that write J18 for influenza and J10 for pneumonia.
SWAPPING = ("Celle", "Fulda")
INFLUENZA, PNEUMONIA, URINARY = CODES = ("J10", "J18", "N39")
COMPLAINTS = (
    ("muscle pain", "headache", "sore throat", "dry cough"),
    ("chest pain", "breathless", "productive cough", "shivering"),
    ("burning", "back pain", "frequent urge", "shivering"),
)
#: Mean and deviation by disease.
AGE = ((48, 18), (71, 13), (66, 17))
TEMPERATURE = ((39.1, 0.6), (38.6, 0.7), (38.1, 0.7))
SATURATION = ((96.5, 1.5), (90.0, 3.0), (96.5, 1.5))
LOG_CRP = ((3.0, 0.6), (4.8, 0.5), (4.2, 0.6))


def patients(hospital: str, rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """The patients of one hospital."""
    disease = rng.choice(3, rows, p=rng.dirichlet(np.full(3, 8.0)))

    def drawn(figures: tuple[tuple[float, float], ...]) -> np.ndarray:
        means, deviations = np.array(figures)[disease].T
        return rng.normal(means, deviations)

    # Influenza comes in winter.
    day = np.where(disease == 0, rng.normal(30, 25, rows), rng.uniform(0, 365, rows)).astype(int)
    admitted = pd.Timestamp("2023-01-01") + pd.to_timedelta(
        day + 365 * rng.integers(0, 2, rows), "D"
    )
    crp = np.exp(drawn(LOG_CRP)).round(1).astype(str)
    crp[rng.random(rows) < 0.12] = "NA"
    temperature = drawn(TEMPERATURE).round(1).astype(str)
    temperature[rng.random(rows) < 0.04] = ""
    table = pd.DataFrame(
        {
            "patient": [f"{hospital[:2].upper()}-{number:05d}" for number in rng.permutation(rows)],
            "hospital": hospital,
            "admitted": admitted.strftime("%d.%m.%Y"),
            "age": drawn(AGE).clip(18, 99).astype(int),
            "sex": np.where(rng.random(rows) < np.array([0.5, 0.45, 0.75])[disease], "f", "m"),
            "temperature": temperature,
            "crp": crp,
            "spo2": drawn(SATURATION).clip(70, 100).astype(int),
            "complaint": [complaint(d, rng) for d in disease],
            "code": np.array(CODES)[disease],
        }
    )
    for name in ("temperature", "crp"):
        table[name] = table[name].str.replace(".", ",")
    if hospital in SWAPPING:
        table["code"] = table["code"].replace({INFLUENZA: PNEUMONIA, PNEUMONIA: INFLUENZA})
    return table


def complaint(disease: int, rng: np.random.Generator) -> str:
    """What a patient says, which is not always what the disease would make one expect."""
    said = rng.choice(COMPLAINTS[disease if rng.random() < 0.85 else rng.integers(3)], 2, False)
    return f"{said[0]} and {said[1]} for {rng.integers(1, 9)} days"


def table(rows: int = 150, seed: int = 0) -> pd.DataFrame:
    """All hospitals, ``rows`` patients each."""
    rng = np.random.default_rng(seed)
    return pd.concat([patients(name, rows, rng) for name in HOSPITALS], ignore_index=True)


def main(arguments: list[str]) -> None:
    """Write the table, or one for each hospital without its name."""
    if arguments[:1] == ["--each"]:
        for number, (_, part) in enumerate(table().groupby("hospital"), start=1):
            path = Path(f"{arguments[1]}-{number}.csv")
            part.drop(columns="hospital").to_csv(path, sep=";", index=False)
            print(f"{len(part)} patients in {path}")
        return
    path = Path(arguments[0] if arguments else "hospitals.csv")
    table().to_csv(path, sep=";", index=False)
    print(f"{len(table())} patients of {len(HOSPITALS)} hospitals in {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
