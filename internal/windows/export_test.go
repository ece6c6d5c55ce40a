package windows

import "time"

// FirstFit is Fits that also returns the start of the opening.
func FirstFit(duration time.Duration, sets ...Set) (time.Time, bool) { return firstFit(duration, sets) }
