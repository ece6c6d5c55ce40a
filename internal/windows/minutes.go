package windows

import (
	"math/bits"
	"time"
)

// minutes has a bit for each minute from a start time on.
type minutes []uint64

func minutesOf(d time.Duration) minutes { return make(minutes, d/time.Minute/64+1) }

// add sets the minutes of other, which begins at the minute at. It drops minutes beyond the end of m.
func (m minutes) add(other minutes, at int) {
	shift := at % 64
	for i, word := range other {
		if n := at/64 + i; n < len(m) {
			m[n] |= word << shift
		}
		if n := at/64 + i + 1; n < len(m) {
			m[n] |= word >> (64 - shift)
		}
	}
}

// run returns the first position at which at least least consecutive minutes are set.
func (m minutes) run(least int) (at int, found bool) {
	length := 0
	for i, word := range m {
		for rest := 64; rest > 0; {
			ones := min(bits.TrailingZeros64(^word), rest)
			if length += ones; length >= least {
				return i*64 + 64 - rest + ones - length, true
			}
			if rest -= ones; rest > 0 {
				zeros := min(bits.TrailingZeros64(word>>ones), rest)
				word >>= ones + zeros
				rest, length = rest-zeros, 0
			}
		}
	}
	return 0, false
}
