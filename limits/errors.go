package limits

import (
	"errors"
	"fmt"

	"github.com/fleetslots/dispatcher/limits/policy"
)

var (
	// ErrInvalid says that a policy or an argument cannot be; nothing was sent.
	ErrInvalid = policy.ErrInvalid
	// ErrUnavailable says that Redis gave no answer, or one that refuses to work.
	// A reservation may or may not have been made.
	ErrUnavailable = errors.New("limits unavailable")
	// ErrBusy says that another process fills a rule from the history just now.
	ErrBusy = errors.New("limits are being counted anew")

	// errNoPeriod: the time of Redis is in none of the calendar periods that a script was sent. The
	// reply has adjusted the clock.
	errNoPeriod = fmt.Errorf("%w: the clock of Redis leaps", ErrUnavailable)
)
