package limits

import (
	"errors"
	"fmt"

	"github.com/fleetslots/dispatcher/limits/policy"
)

var (
	// ErrInvalid reports that a policy or an argument is invalid. Nothing was sent.
	ErrInvalid = policy.ErrInvalid
	// ErrUnavailable reports that Redis sent no reply, or replied that it cannot work. A reservation may have been made or not, and a take
	// may have been counted or not.
	ErrUnavailable = errors.New("limits unavailable")
	// ErrBusy reports that the counts of a rule are being filled from the history.
	ErrBusy = errors.New("the counts of limits are being rebuilt")

	// errNoPeriod reports that the time of Redis is in none of the calendar periods that a script received. The reply has corrected the
	// estimated clock of Redis, so the next call can succeed.
	errNoPeriod = fmt.Errorf("%w: the clock of Redis jumped", ErrUnavailable)
)
