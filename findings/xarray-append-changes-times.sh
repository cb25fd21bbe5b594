#!/bin/sh
# xarray 2026.9.0 with zarr 3.1.6 and pandas 3.1.1: `to_zarr(append_dim="time")` stores appended times in another unit, so that a day becomes two months.
#
# xarray stores times as integers with a unit, and chooses the unit by the times of the first write. For whole days it is "days since ...". If appended times are
# not whole days, it says in a warning that it stores them in hours or milliseconds instead. It writes the new integers, but not the new unit, because the array
# already has one. So the appended times are read as days. The warning does not say that the times are wrong. One row at noon after daily rows
# is enough. Set the unit at the first write: `encoding={"time": {"units": "milliseconds since 2020-01-01"}}`.
#
# Guess: the append converts the times to the unit of the array, or fails.
# Seen, 2026-11-30: after 1 and 2 January, 3 January 12:00 is appended and read as 1 March. With milliseconds, the times cannot be decoded at all. With a unit
# that was set at the first write, all times are right.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'xarray==2026.9.0' 'zarr==3.1.6' 'pandas==3.1.1' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys
import warnings

import numpy as np
import xarray as xr
import zarr

warnings.filterwarnings("ignore", "Consolidated metadata is currently not part")


def read(name, times, **options):
    """The stored times after two daily rows and then `times` were written."""
    path = f"{sys.argv[1]}/{name}"
    days = np.array(["2020-01-01", "2020-01-02"], "datetime64[ns]")
    xr.Dataset({"loss": ("time", [3.0, 2.0])}, {"time": days}).to_zarr(path, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        xr.Dataset({"loss": ("time", [1.0] * len(times))}, {"time": np.array(times, "datetime64[ns]")}).to_zarr(path, append_dim="time")
    print(name, [str(one.message)[:110] for one in caught if "onsolidated" not in str(one.message)])
    return path


print("xarray", xr.__version__, "zarr", zarr.__version__)
path = read("hours", ["2020-01-03T12:00"])
found = xr.open_zarr(path).time.values.astype("datetime64[m]").astype(str).tolist()
print("    read:", found)
assert found == ["2020-01-01T00:00", "2020-01-02T00:00", "2020-03-01T00:00"]

path = read("milliseconds", ["2020-01-03T12:34:56.789"])
raw = xr.open_zarr(path, decode_times=False).time
print("    stored:", raw.values.tolist(), raw.attrs["units"])
assert raw.values.tolist() == [0, 1, 218096789] and raw.attrs["units"].startswith("days")
try:
    xr.open_zarr(path)
except ValueError as error:
    print("    cannot be opened:", str(error)[:60])
else:
    raise SystemExit("the appended milliseconds can be decoded")

path = read("unit set", ["2020-01-03T12:34:56.789"], encoding={"time": {"units": "milliseconds since 2020-01-01"}})
found = xr.open_zarr(path).time.values.astype("datetime64[ms]").astype(str).tolist()
print("    read:", found)
assert found[2] == "2020-01-03T12:34:56.789"
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
