package store

import (
	"context"
	"fmt"
	"time"
)

// credentials holds the tokens of devices and operators, the sessions of the dashboard, and the changes of accounts at an MQTT broker.
type credentials struct{ *connection }

// RotateDeviceToken adds a token with the SHA-256 tokenHash to the device, and setAccount gives the same secret to its account at the MQTT
// broker. The older tokens expire at olderUntil, overlap from now; an overlap of 0 means at once. Error: ErrNotFound.
func (s credentials) RotateDeviceToken(ctx context.Context, actor, id string, tokenHash []byte, overlap time.Duration, setAccount SetAccount) (olderUntil time.Time, err error) {
	err = s.write(ctx, func(tx session) (err error) {
		olderUntil, err = tx.credentials().rotate(ctx, id, tokenHash, overlap)
		if err != nil {
			return err
		}
		err = tx.recordEvent(ctx, Event{Kind: "device.token_added", Actor: actor, Device: id, Detail: "overlap=" + overlap.String()})
		if err != nil {
			return err
		}
		tx.pendingNews.addDevices(id)
		return tx.credentials().setAccount(ctx, id, setAccount)
	})
	return olderUntil, err
}

// rotate adds a token with this hash to the device id and lets its older tokens expire after overlap, at olderUntil.
func (s credentialsIn) rotate(ctx context.Context, id string, tokenHash []byte, overlap time.Duration) (olderUntil time.Time, err error) {
	err = s.scanRow(ctx, []any{&olderUntil}, `SELECT {now} + $2 * {ms} FROM devices WHERE id = $1 FOR UPDATE`, id, overlap.Milliseconds())
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
	_, err = s.addToken(ctx, Token{Device: id}, tokenHash)
	return olderUntil, err
}

// enrolledTokenName is the name of a token that a device requested itself.
const enrolledTokenName = "enrolled"

// EnrollDevice gives a registered device the token that it requested, with the SHA-256 tokenHash; setAccount gives the secret to its
// account at the MQTT broker. The token replaces an enrolled one that was never used, because its reply was lost. Errors: ErrNotFound;
// ErrExists if the device has used a token of its own or an operator gave it one.
func (s credentials) EnrollDevice(ctx context.Context, id string, tokenHash []byte, setAccount SetAccount) error {
	return s.write(ctx, func(tx session) error {
		hasUsedOwnToken, err := queryOne(ctx, tx, singleColumn[bool], `SELECT own_token FROM devices WHERE id = $1 FOR UPDATE`, id)
		if err != nil {
			return err
		}
		hasOtherToken, err := queryOne(ctx, tx, singleColumn[bool], `SELECT EXISTS (SELECT 1 FROM tokens k WHERE k.device = $1 AND k.name <> $2)`, id, enrolledTokenName)
		if err != nil {
			return err
		}
		if hasUsedOwnToken || hasOtherToken {
			return fmt.Errorf("device %s already has a token: %w", id, ErrExists)
		}
		replaced, err := tx.exec(ctx, `DELETE FROM tokens WHERE device = $1 AND name = $2`, id, enrolledTokenName)
		if err != nil {
			return err
		}
		if _, err := tx.credentials().addToken(ctx, Token{Device: id, Name: enrolledTokenName}, tokenHash); err != nil {
			return err
		}
		if replaced == 0 { // record only the first token: a device that enrolls again and again would fill the log
			if err := tx.recordEvent(ctx, Event{Kind: "device.enrolled", Actor: id, ActorKind: ActorDevice, Device: id}); err != nil {
				return err
			}
		}
		tx.pendingNews.addDevices(id)
		return tx.credentials().setAccount(ctx, id, setAccount)
	})
}

// MarkOwnTokens records that each device in devices has used a token of its own, not a token of its fleet.
func (s credentials) MarkOwnTokens(ctx context.Context, devices ...string) error {
	return s.write(ctx, func(tx session) error {
		// Rows are locked in one order, so that two concurrent calls cannot deadlock.
		marked, err := collect(ctx, tx, singleColumn[string], `
			UPDATE devices SET own_token = TRUE WHERE id IN (
				SELECT d.id FROM {names} JOIN devices d ON d.id = names.name WHERE d.own_token IS FALSE ORDER BY d.id FOR UPDATE OF d)
			RETURNING id`, namesInput(devices))
		tx.pendingNews.addDevices(marked...)
		tx.pendingNews.makesNoWork = true // this replica already admits only the device that used its token
		return err
	})
}
