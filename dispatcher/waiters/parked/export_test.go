package parked

import "time"

// SetQuietTime sets how long a connection may receive no message before it is tested.
func (b *Board) SetQuietTime(quiet time.Duration) { b.quiet = quiet }
