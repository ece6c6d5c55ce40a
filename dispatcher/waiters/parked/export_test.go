package parked

import "time"

// SetQuietTime sets the time without a message after which a connection is tested.
func (b *Board) SetQuietTime(quiet time.Duration) { b.quiet = quiet }
