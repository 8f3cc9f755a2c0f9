//! A Python virtual environment inside the array: made by venv, filled by pip from wheels made here
//! without a network, its commands run.

use super::{Scene, postgresql::lose_one};
use crate::{Outcome, audit::same};

/// Makes a wheel of a package with a command, data and a dependency.
const WHEELS: &str = include_str!("wheels.py");

/// $V is the environment.
const BEGIN: &str = r#"
set -e
/usr/bin/python3 -m venv "$V"
. "$V/bin/activate"
pip() { python -m pip --disable-pip-version-check --no-cache-dir "$@"; }
pip install --quiet --no-index --find-links "$W/wheels" greeting
greeting world | sed "s#$V#ENV#"
"#;

/// The rest of a thorough run.
const STEPS: &str = r#"
"$V/bin/greeting" again | sed "s#$V#ENV#"
pip list --format=freeze | grep -v '^\(pip\|setuptools\)='
pip check
pip show --files greeting | grep -v '^Location' | sort
pip install --quiet --no-index --find-links "$W/wheels" --upgrade 'greeting>=2'
greeting upgraded | sed "s#$V#ENV#"
pip uninstall --quiet --yes counting
(pip check || true)
pip install --quiet --no-index --find-links "$W/wheels" counting
python -m compileall -q "$V/lib/python3"*/site-packages/greeting
python -c 'import greeting, sys, importlib.metadata as m; print(m.version("greeting"), len(sys.path), greeting.data().decode())'
find "$V" -type f -name '*.py' | wc -l
find "$V" -name '__pycache__' | wc -l
"#;

pub(super) fn run(scene: &Scene<'_>) -> Outcome<String> {
    let array = scene.array;
    let wheels = array.host_directory("wheels")?;
    array.outside("/usr/bin/python3").args(["-c", WHEELS]).arg(&wheels).done()?;
    let plain = array.work.join("plain");
    let steps = [BEGIN, scene.sized("", STEPS)].concat();
    let expected = array.outside("bash").args(["-c", &steps]).env("V", &plain).text()?;
    let inside = array.data.join("env");
    let done = array.inside("bash").args(["-c", &steps]).env("V", &inside).text()?;
    same("what the environment says", &expected, &done)?;
    lose_one(scene)?;
    let greeting = array.inside("bash").args(["-c", "\"$V/bin/greeting\" degraded"]).env("V", &inside).text()?;
    if !greeting.starts_with("hello degraded") {
        return Err(format!("the command says {greeting:?}"));
    }
    Ok(scene.sized("venv, 2 wheels", "venv, 2 wheels, upgrade and removal").to_owned())
}
