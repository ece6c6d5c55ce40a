package credentials

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

const (
	// makingLimit bounds how long the accounts of an import are made.
	makingLimit = 5 * time.Minute
	// stageKept is when the accounts of an import go whose process died, and for about how long
	// a part of them is tried. Twenty seconds of it are left, at least, for the transaction
	// behind the last part. Earlier would fail an import, and do no harm.
	stageKept = 30 * time.Second
	// partPause is between two tries of a part.
	partPause = time.Second
	// dropLimit bounds the word that the accounts of a failed import may go.
	dropLimit = 3 * time.Second
	// askTime is how long a request to the broker is to take, which serves nobody meanwhile.
	askTime = 200 * time.Millisecond
	// firstAsk and mostAsked are the accounts of a request. The broker takes packets of 128 KiB;
	// an account of the longest name has 1.7.
	firstAsk, mostAsked = 5, 50
)

// ImportDevices registers devices, all or none, and makes their tokens: one for
// each of the list, empty for those that were given none. It sets their hashes.
// Errors are those of store.ImportDevices, store.StageAccounts and store.SetStaged; ErrBroker;
// ErrOnePassword.
func (r *Registry) ImportDevices(
	ctx context.Context, actor string, list []store.NewDevice, existing store.Existing, overlap time.Duration,
) (tokens []string, err error) {
	tokens = make([]string, len(list))
	for i := range list {
		tokens[i] = NewToken()
		hash := HashToken(tokens[i])
		list[i].Hash = hash[:]
	}
	var given []bool
	if r.accounts.Accounts == nil || r.accounts.askLedger() {
		given, err = r.config.Ledger.ImportDevices(ctx, actor, list, existing, overlap, 0)
	} else {
		given, err = r.importWithAccounts(ctx, actor, list, tokens, existing)
	}
	if err != nil {
		return nil, err
	}
	for i := range tokens {
		if !given[i] {
			tokens[i] = ""
		}
	}
	return tokens, nil
}

// importWithAccounts makes the accounts first: not in the ledger's transaction, which they
// would hold open for longer than others wait for its rows.
func (r *Registry) importWithAccounts(ctx context.Context, actor string, list []store.NewDevice, tokens []string, existing store.Existing) ([]bool, error) {
	rotates := existing == store.RotateExisting
	if rotates {
		existing = store.RefuseExisting
	}
	s := staging{registry: r, ledger: r.config.Ledger, stage: store.NewStage(store.OnceOf(ctx))}
	defer s.drop(ctx)
	err := s.begin(ctx, list, tokens, existing)
	if err == nil {
		err = s.makeAccounts(ctx)
	}
	var given []bool
	if err == nil {
		given, err = s.ledger.ImportDevices(ctx, actor, list, existing, 0, s.stage)
	}
	if rotates && errors.Is(err, store.ErrExists) {
		err = fmt.Errorf("%w: %w", ErrOnePassword, err)
	}
	return given, err
}

// staging is the accounts that an import makes.
type staging struct {
	registry *Registry
	ledger   importLedger
	stage    store.Stage
	ids      []string
	accounts []devices.Account // of the ids
}

// begin notes the accounts in the ledger.
func (s *staging) begin(ctx context.Context, list []store.NewDevice, tokens []string, existing store.Existing) error {
	if err := s.registry.accounts.take(ctx, makingLimit); err != nil {
		return err
	}
	defer s.registry.accounts.giveBack()
	staged, err := s.ledger.StageAccounts(ctx, s.stage, list, existing, stageKept)
	for _, d := range staged {
		id := list[d.Entry].ID
		s.ids = append(s.ids, id)
		s.accounts = append(s.accounts, devices.Account{Device: devices.ID(id), Password: tokens[d.Entry], Enabled: d.Enabled})
	}
	return err
}

// makeAccounts makes them in parts: others have their turn between two, and the broker serves
// its clients. A part that failed is tried again until the stage is overtaken, at the latest
// when its time is over, for it would cost all parts before; the first part costs nothing.
func (s *staging) makeAccounts(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, makingLimit)
	defer cancel()
	part := firstAsk
	var failed error // the part before, which is tried again
	for made := 0; made < len(s.ids); {
		end := min(made+part, len(s.ids))
		took, err := s.makePart(ctx, made, end)
		switch {
		case err == nil:
			part = min(1+int(time.Duration(end-made)*askTime/max(took, time.Millisecond)), mostAsked)
			made, failed = end, nil
		case made == 0 || errors.Is(err, store.ErrOvertaken) || !pause(ctx, partPause):
			return fmt.Errorf("%d of %d accounts: %w", made, len(s.ids), errors.Join(failed, err))
		default: // perhaps it was too large
			part, failed = firstAsk, err
		}
	}
	return nil
}

// pause says false if ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *staging) makePart(ctx context.Context, from, to int) (took time.Duration, err error) {
	if err := s.registry.accounts.take(ctx, makingLimit); err != nil {
		return 0, err
	}
	defer s.registry.accounts.giveBack()
	err = s.ledger.SetStaged(ctx, s.stage, s.ids, stageKept, func(ctx context.Context) error {
		began := s.registry.config.Now()
		err := s.registry.accounts.set(ctx, s.accounts[from:to]...)
		took = s.registry.config.Now().Sub(began)
		return err
	})
	return took, err
}

// drop lets those accounts be deleted now that the ledger did not keep. It does so also when
// the client has left. It need not know whether the import was committed: then there are no
// notes of the stage any more, and nothing is dropped.
func (s *staging) drop(ctx context.Context) {
	if len(s.ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropLimit)
	defer cancel()
	if err := s.ledger.DropStage(ctx, s.stage, s.ids); err != nil {
		s.registry.config.Logger.WarnContext(ctx, "the accounts of an import that failed go later", "in", stageKept, "err", err)
	}
}
