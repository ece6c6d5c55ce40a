package store

import (
	"context"
	"fmt"
	"time"
)

// credentials are the tokens of devices and operators, the sessions of the dashboard,
// and the changes of accounts at a broker.
type credentials struct{ *connection }

// RotateDeviceToken gives the device one more credential, of which its account
// hears through set. Older ones end after overlap, at once with 0; it returns
// when that is. ErrNotFound.
func (s credentials) RotateDeviceToken(ctx context.Context, actor, id string, hash []byte, overlap time.Duration, set SetAccount) (olderUntil time.Time, err error) {
	err = s.write(ctx, func(tx session) (err error) {
		olderUntil, err = tx.credentials().rotate(ctx, id, hash, overlap)
		if err != nil {
			return err
		}
		err = tx.record(ctx, Event{Kind: "device.token_added", Actor: actor, Device: id, Detail: "overlap=" + overlap.String()})
		if err != nil {
			return err
		}
		tx.telling.devices(id)
		return tx.credentials().setAccount(ctx, id, set)
	})
	return olderUntil, err
}

func (s credentialsIn) rotate(ctx context.Context, id string, hash []byte, overlap time.Duration) (olderUntil time.Time, err error) {
	err = s.rowOf(ctx, `SELECT {now} + $2 * {ms} FROM devices WHERE id = $1 {lock}`, []any{id, overlap.Milliseconds()}, instant{&olderUntil})
	if err != nil {
		return olderUntil, err
	}
	if _, err := s.exec(ctx, `DELETE FROM tokens WHERE device = $1 AND expires_at <= {now}`, id); err != nil {
		return olderUntil, err
	}
	_, err = s.exec(ctx, `
		UPDATE tokens SET expires_at = {epoch} + $2 * {ms}
		WHERE device = $1 AND (expires_at IS NULL OR expires_at > {epoch} + $2 * {ms})`, id, olderUntil.UnixMilli())
	if err != nil {
		return olderUntil, err
	}
	_, err = s.addToken(ctx, Token{Device: id}, hash)
	return olderUntil, err
}

// enrolled is the name of a token that a device asked for.
const enrolled = "enrolled"

// EnrollDevice gives a device, registered if it was not, a credential of its
// own at its own request; its account hears of it through set. It replaces one
// it asked for before and never used: the reply that carried that one was lost.
// ErrExists once it has used one, or was given one by an operator: then only an
// operator gives another.
func (s credentials) EnrollDevice(ctx context.Context, id string, tokenHash []byte, set SetAccount) error {
	return s.write(ctx, func(tx session) error {
		if _, err := tx.devices().register(ctx, id, id, DeviceSpec{}); err != nil {
			return err
		}
		own, err := one(ctx, tx, only[bool], `SELECT own_token FROM devices WHERE id = $1 {lock}`, id)
		if err != nil {
			return err
		}
		given, err := one(ctx, tx, only[bool], `SELECT EXISTS (SELECT 1 FROM tokens k WHERE k.device = $1 AND k.name <> $2)`, id, enrolled)
		if err != nil {
			return err
		}
		if own || given {
			return fmt.Errorf("device %s has a token: %w", id, ErrExists)
		}
		replaced, err := tx.exec(ctx, `DELETE FROM tokens WHERE device = $1 AND name = $2`, id, enrolled)
		if err != nil {
			return err
		}
		if _, err := tx.credentials().addToken(ctx, Token{Device: id, Name: enrolled}, tokenHash); err != nil {
			return err
		}
		if replaced == 0 { // otherwise a device that never uses its token would fill the log
			if err := tx.record(ctx, Event{Kind: "device.enrolled", Actor: id, Device: id}); err != nil {
				return err
			}
		}
		tx.telling.devices(id)
		return tx.credentials().setAccount(ctx, id, set)
	})
}

// MarkOwnTokens notes that these devices have used a credential of their own.
func (s credentials) MarkOwnTokens(ctx context.Context, devices ...string) error {
	return s.write(ctx, func(tx session) error {
		// In one order, so that two that meet wait for one another and not both.
		noted, err := collect(ctx, tx, only[string], `
			UPDATE devices SET own_token = TRUE WHERE id IN (
				SELECT d.id FROM {names} JOIN devices d ON d.id = names.name WHERE d.own_token IS FALSE ORDER BY d.id {lock d})
			RETURNING id`, names(devices))
		tx.telling.devices(noted...)
		tx.telling.later = true // this replica admits none but the one who used it now
		return err
	})
}
