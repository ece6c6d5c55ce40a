package windows

import "time"

// FirstFit is also when the opening begins that Fits found.
func FirstFit(needed time.Duration, sets ...Set) (time.Time, bool) { return firstFit(needed, sets) }
