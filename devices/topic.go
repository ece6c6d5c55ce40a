package devices

import "strings"

const (
	topicPrefix  = "fleet/v1/"
	reportSuffix = "/report"
	replySuffix  = "/reply"
)

// ReportFilter matches the report topics of all devices.
const ReportFilter = topicPrefix + "+" + reportSuffix

// ReportTopic is where a device publishes its reports.
func ReportTopic(id ID) string { return topicPrefix + string(id) + reportSuffix }

// ReplyTopic is where a device receives its replies.
func ReplyTopic(id ID) string { return topicPrefix + string(id) + replySuffix }

// SharedReportFilter is ReportFilter shared by the members of group: each
// report reaches one of them.
func SharedReportFilter(group string) string { return "$share/" + group + "/" + ReportFilter }

// ParseReportTopic returns the device of a report topic. The error is an
// *Error with CodeInvalidTopic or CodeInvalidDeviceID.
func ParseReportTopic(topic string) (ID, error) {
	rest, hasPrefix := strings.CutPrefix(topic, topicPrefix)
	id, hasSuffix := strings.CutSuffix(rest, reportSuffix)
	if !hasPrefix || !hasSuffix {
		return "", &Error{ReasonInvalid, CodeInvalidTopic, "topic: must be " + topicPrefix + "{device}" + reportSuffix}
	}
	return ParseID(id)
}
