"""Names of units, as they stand behind numbers and in a line under the headings of a table."""

import re

CURRENCY_WORDS = """
    EUR USD GBP CHF JPY CNY RMB INR KRW BRL MXN ARS CLP COP CAD AUD NZD HKD SGD TWD THB IDR MYR PHP VND PKR BDT
    LKR SEK NOK DKK ISK PLN CZK HUF RON BGN RSD UAH RUB TRY ILS AED SAR QAR KWD EGP MAD NGN KES GHS ZAR
"""
GLUED_WORDS = """
    Wh kWh MWh GWh TWh kW MW GW kVA VA var kvar V kV mV mA Ah mAh Ω kΩ Hz kHz MHz GHz kJ MJ GJ cal kcal cm mm µm
    nm km dm mi ft in yd nmi ha ac sqm sqft m2 km2 cm2 m3 cm3 m² km² cm² m³ cm³ ml mL hl gal bbl g kg mg µg lb
    lbs oz kN Pa kPa hPa MPa bar mbar psi atm mmHg °C °F °K ° deg rad ms µs us ns s min h hr hrs rpm mph kmh kph
    km/h m/s kt kn dB dBm dBA lx lm cd mol mmol ppm ppb pct px kB KB MB GB TB kbps Mbps Gbps pcs Stk mg/l mg/L
    µg/m³ µg/m3 g/l kWh/m² W/m² W/m2
"""
SPACED_WORDS = """
    W A J N K C F B L M l m t d y k bn mn mln Mio Mrd million billion thousand Tsd sec day days week weeks month
    months yr year years ohm inch inches feet foot miles knots degrees deg. percent pieces units unit Stück each
    persons people to tons tonnes pH NTU FNU PSU bit bits bytes Byte BTU $ € £ ¥ % ‰ °N °S °E °W
"""
CURRENCY_CODES = frozenset(CURRENCY_WORDS.split())
"""Currencies as ISO 4217 calls them."""
GLUED_UNITS = frozenset(GLUED_WORDS.split())
"""Units that stand behind a number without a blank; a capital letter there is more often part of a code, as in 116A."""
SPACED_UNITS = GLUED_UNITS | CURRENCY_CODES | frozenset(SPACED_WORDS.split())
"""Units in a line of their own."""
TIME_FORM = re.compile(r"^(?:([YMDHSTJA])\1{1,3}[-/.:, T]?){1,7}$|^(?:UTC|GMT|CET|CEST|local|TS)$", re.IGNORECASE)
"""How a column of times says what its cells are: YYYY-MM-DD hh:mm."""


def unit_like(text: str) -> bool:
    """Whether a text is a unit, or several with signs between them, as m/s, (kWh/m²) and Mio. EUR are."""
    plain = text.strip("()[] ")
    parts = [re.sub(r"[\^-]*[\d²³]*$", "", part).strip("-^") for part in re.split(r"[\s/·*.]+", plain)]
    parts = [part for part in parts if part]
    return plain in SPACED_UNITS or (bool(parts) and all(part in SPACED_UNITS for part in parts))
