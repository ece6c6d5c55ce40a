package mqtt

import "time"

// DrawPause exports drawPause.
func DrawPause(most time.Duration) time.Duration { return drawPause(most) }

// ReasonOf exports errorTextWithoutAddress.
func ReasonOf(err error) string { return errorTextWithoutAddress(err) }
