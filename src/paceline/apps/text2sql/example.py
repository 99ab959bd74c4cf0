"""A small database to try the program on: singers, their concerts and the halls."""

import sqlite3
from pathlib import Path

SCHEMA = """
CREATE TABLE singer (id INTEGER PRIMARY KEY, name VARCHAR, country VARCHAR, born INTEGER);
CREATE TABLE hall (id INTEGER PRIMARY KEY, name VARCHAR, city VARCHAR, seats INTEGER);
CREATE TABLE concert (singer INTEGER REFERENCES singer(id), hall INTEGER REFERENCES hall(id), year INT, sold INT);
"""
SINGERS = (("Ada Quinn", "France", 1970), ("Ben Ortiz", "Spain", 1984), ("Cleo Marsh", "France", 1991),
           ("Dov Lindt", "Norway", 1978), ("Eva Prill", "Spain", 1999))  # fmt: skip
HALLS = (("Old Mill", "Lyon", 900), ("Harbour Hall", "Bergen", 2400), ("Teatro Sol", "Sevilla", 1500))
CONCERTS = ((1, 1, 2021, 850), (1, 2, 2022, 2100), (2, 3, 2021, 1500), (3, 1, 2023, 400), (3, 3, 2023, 1200),
            (4, 2, 2022, 1900), (5, 3, 2024, 1450), (5, 1, 2024, 900))  # fmt: skip


def example(folder: Path) -> Path:
    """Path of the database file, built again in a folder."""
    path = folder / "music.sqlite"
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    try:
        connection.executescript(SCHEMA)
        connection.executemany("INSERT INTO singer (name, country, born) VALUES (?, ?, ?)", SINGERS)
        connection.executemany("INSERT INTO hall (name, city, seats) VALUES (?, ?, ?)", HALLS)
        connection.executemany("INSERT INTO concert VALUES (?, ?, ?, ?)", CONCERTS)
        connection.commit()
    finally:
        connection.close()
    return path
