package store

import "time"

// Pool is a set of Capacity numbered places (slots 0..Capacity-1).
type Pool struct {
	Name      string
	Capacity  int           // 0..10000; 0 grants nothing
	Lease     time.Duration // 1 s..24 h, unless the batch says otherwise
	Paused    bool          // true: nothing new is granted
	Version   int64         // increases with every change
	CreatedAt time.Time
	UpdatedAt time.Time
}
