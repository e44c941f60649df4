"""The page that a person opens first."""

from ctr.api.page.page import add_page, application_class
