package windows

import (
	"math/bits"
	"time"
)

// minuteSet is a set of minutes. Bit n is minute n after a start time.
type minuteSet []uint64

func newMinuteSet(length time.Duration) minuteSet { return make(minuteSet, length/time.Minute/64+1) }

// addMinutes adds the minutes of other to m. Minute 0 of other is minute offset of m. addMinutes drops minutes after the end of m.
func (m minuteSet) addMinutes(other minuteSet, offset int) {
	shift := offset % 64
	for i, word := range other {
		if n := offset/64 + i; n < len(m) {
			m[n] |= word << shift
		}
		if n := offset/64 + i + 1; n < len(m) {
			m[n] |= word >> (64 - shift)
		}
	}
}

// findConsecutiveMinutes returns the start of the first run of at least minLength consecutive minutes in the set.
func (m minuteSet) findConsecutiveMinutes(minLength int) (start int, found bool) {
	length := 0
	for i, word := range m {
		for rest := 64; rest > 0; {
			ones := min(bits.TrailingZeros64(^word), rest)
			if length += ones; length >= minLength {
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
