//! Checkrein as a whole binary in front of third-party programs, whose own memory is the judge of what arrived.
//! `tests/run` starts them; a test whose program is not there fails, unless CHECKREIN_ALLOW_MISSING=1.
