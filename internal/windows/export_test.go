package windows

import "time"

// FirstFit does the same as Fits, and also returns the start of the opening that it found.
func FirstFit(duration time.Duration, sets ...Set) (time.Time, bool) { return firstFit(duration, sets) }
