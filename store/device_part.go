package store

import "context"

// DevicesWith searches at most looked of the devices that match f, in ascending order of ids, for ids that contain part. Its result has the
// same form as the result of Silent. Upper and lower case are the same.
func (s devices) DevicesWith(ctx context.Context, f DeviceFilter, part string, looked int) (Silence, error) {
	return s.sift(ctx, f, like("id", "%s"), containing(part), looked)
}
