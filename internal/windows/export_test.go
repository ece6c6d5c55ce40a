package windows

import "time"

// FirstFit calls firstCommonOpening: it reports whether all sets are ever open together for longer than duration, and returns the start of the first
// such time.
func FirstFit(duration time.Duration, sets ...Set) (time.Time, bool) {
	return firstCommonOpening(duration, sets)
}
