package windows

import "time"

// FirstFit is Fits that also returns the start of the opening.
func FirstFit(needed time.Duration, sets ...Set) (time.Time, bool) { return firstFit(needed, sets) }
