package parked

import "time"

// TriesAfter sets the silence after which a connection is tried.
func (b *Board) TriesAfter(quiet time.Duration) { b.quiet = quiet }
