package parked

import "time"

// TriesAfter sets the time without a message after which a connection is tested.
func (b *Board) TriesAfter(quiet time.Duration) { b.quiet = quiet }
