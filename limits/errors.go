package limits

import (
	"errors"
	"fmt"

	"github.com/fleetslots/dispatcher/limits/policy"
)

var (
	// ErrInvalid reports that a policy or an argument is invalid. Nothing was sent.
	ErrInvalid = policy.ErrInvalid
	// ErrUnavailable reports that Redis sent no reply, or replied that it cannot work. A
	// reservation may or may not have been made, and a take may or may not have been counted.
	ErrUnavailable = errors.New("limits unavailable")
	// ErrBusy reports that another process is filling a rule from the history.
	ErrBusy = errors.New("the counts of limits are being rebuilt")

	// errNoPeriod reports that the time of Redis is in none of the calendar periods that a script
	// received. The reply has adjusted the clock.
	errNoPeriod = fmt.Errorf("%w: the clock of Redis jumped", ErrUnavailable)
)
