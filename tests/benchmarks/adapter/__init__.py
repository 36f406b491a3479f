"""An adapter against full fine-tuning: the bases, the chats, and the trainings."""
